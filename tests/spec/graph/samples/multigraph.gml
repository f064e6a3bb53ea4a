graph [
  directed 1
  multigraph 1
  node [ id 0 label "0" Longitude 130.41806 Latitude 33.60639 ]
  node [ id 1 label "1" Longitude 131.6125 Latitude 33.23806 ]
  edge [ source 0 target 1 key 0 distance 140.0 ]
  edge [ source 0 target 1 key 1 distance 150.0 ]
  edge [ source 1 target 0 key 0 distance 145.0 ]
]
