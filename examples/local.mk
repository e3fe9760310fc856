# Programs for others to begin with; tests/cases/mount/example_extents.sh compiles
# and runs them.
exampledir = $(docdir)/examples
dist_example_DATA = %D%/extents.c
dist_example_SCRIPTS = %D%/guide.sh
