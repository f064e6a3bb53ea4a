graph [
  node [ id 0 label "München" lat 48.14 lng 11.58 ]
  node [ id 1 label "K&#246;ln &quot;Messe&quot;" lat 50.94 lng 6.96 ]
  edge [ source 0 target 1 ]
]
