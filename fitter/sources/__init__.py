"""Reading: one file per kind of data set, each turning a file into rows and the reasons for what it leaves out."""
