# Faults of the operating system, preloaded: a short run in `make check`, a long one
# by `make campaign`.  The matrix has one fault in one file of each kind of source.
scripts += %D%/short.sh %D%/matrix.sh
check_DATA += %D%/faults.so %D%/unmount_race.so %D%/halfway.so
%D%/faults.so: %D%/faults.c
	$(preload) -o $@ $< -ldl
%D%/unmount_race.so: %D%/unmount_race.c
	$(preload) -o $@ $< -ldl
%D%/halfway.so: %D%/halfway.c
	$(preload) -I$(top_srcdir) -o $@ $<
check_PROGRAMS += %D%/matrix
%C%_matrix_SOURCES = %D%/matrix.c %D%/matrix_cell.h %D%/matrix_cell.c \
	%D%/matrix_tree.h %D%/matrix_tree.c %D%/halfway.h %D%/halfway.c
%C%_matrix_LDADD = $(ckpt_libs)
CLEANFILES += %D%/faults.so %D%/unmount_race.so %D%/halfway.so
EXTRA_DIST += %D%/faults.c %D%/unmount_race.c %D%/parts.sh %D%/campaign %D%/RESULTS.md
