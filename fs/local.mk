# Serves a finished plan over FUSE.

bin_PROGRAMS += ucfs
ucfs_SOURCES = \
	%D%/log.h %D%/log.c \
	%D%/options.h %D%/options.c \
	%D%/reals.h %D%/reals.c \
	%D%/views.h %D%/views.c \
	%D%/tree.h %D%/tree_ino.h %D%/tree.c %D%/tree_dir.c \
	%D%/kernel.h %D%/kernel.c \
	%D%/ops.h %D%/ops.c \
	%D%/main.c
ucfs_LDADD = $(ckpt_libs) $(FUSE_LIBS)
