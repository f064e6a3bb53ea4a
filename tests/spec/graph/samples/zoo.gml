graph [
  DateObtained "22/10/10"
  GeoLocation "Ireland"
  Network "Made up, in the form of the Internet Topology Zoo"
  label "Zoo"
  Creator "Topology Zoo Toolset"
  node [
    id 0
    label "Dublin"
    Country "Ireland"
    Longitude -6.26719
    Internal 1
    Latitude 53.34399
  ]
  node [
    id 1
    label "None"
    Internal 1
    hyperedge 1
  ]
  node [
    id 2
    label "Cork"
    Country "Ireland"
    Longitude -8.49583
    Internal 1
    Latitude 51.89797
  ]
  node [
    id 3
    label "None"
    Internal 0
  ]
  node [
    id 4
    label "Galway"
    Internal 1
    Longitude -9.04889
    Latitude 53.27194
  ]
  edge [
    source 0
    target 1
    LinkSpeed "10"
    LinkSpeedUnits "G"
    LinkLabel "10 Gbit/s"
    LinkSpeedRaw 10000000000.0
  ]
  edge [
    source 1
    target 2
    LinkLabel "< 10 Gbit/s"
  ]
  edge [
    source 2
    target 3
    LinkSpeedRaw 56000.0
  ]
  edge [
    source 0
    target 4
    LinkSpeedRaw 1000000000.0
  ]
]
