# Programs for others to begin with; tests/cases/mount/example_extents.sh and
# tests/cases/library/example.sh compile and run them.
exampledir = $(docdir)/examples
dist_example_DATA = %D%/extents.c %D%/uckpt.c
dist_example_SCRIPTS = %D%/guide.sh
