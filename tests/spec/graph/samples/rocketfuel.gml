graph [
  directed 0
  node [ id 0 label "Santa+Clara,+CA389" ]
  node [ id 1 label "Santa+Clara,+CA444" ]
  node [ id 2 label "San+Jose,+CA12" ]
  node [ id 3 label "Santa Clara 2" ]
  edge [ source 0 target 1 latency 1 weight 3.5 ]
  edge [ source 1 target 2 latency 2.5 weight 7 ]
  edge [ source 2 target 3 latency 3 weight 7 ]
]
