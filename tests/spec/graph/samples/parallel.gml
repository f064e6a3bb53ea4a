# Parallel edges, which the file does not announce, and a loop
graph
[
  node [ id 1 label "Paris" lat 48.8566 lon 2.3522 ]
  node [ id 2 label "Lyon" lat 45.76 lon 4.8357 ]
  edge [ source 1 target 2 ]
  edge [ source 2 target 1 dist 100.5 capacity 4.0e8 ]
  edge [ source 1 target 2 dist 300 ]
  edge [ source 2 target 2 dist 1 ]
]
