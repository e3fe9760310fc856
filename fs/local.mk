# Serves a finished plan over FUSE.

bin_PROGRAMS += ucfs
ucfs_SOURCES = \
	%D%/log.h %D%/log.c \
	%D%/options.h %D%/options.c \
	%D%/reals.h %D%/reals.c \
	%D%/views.h %D%/views.c \
	%D%/stats.h %D%/stats.c \
	%D%/report.h %D%/report.c \
	%D%/tree.h %D%/tree_ino.h %D%/tree.c %D%/tree_dir.c \
	%D%/tree_control.c \
	%D%/keeper.h %D%/keeper.c \
	%D%/kernel.h %D%/kernel.c \
	%D%/passthrough.h %D%/passthrough.c \
	%D%/pool.h %D%/pool.c \
	%D%/order.h %D%/order.c \
	%D%/backing.h %D%/backing_impl.h %D%/backing.c \
	%D%/assembly.c %D%/ahead.c \
	%D%/small.h %D%/small.c \
	%D%/turn.h %D%/turn.c \
	%D%/ops.h %D%/ops_impl.h %D%/ops.c %D%/ops_file.c %D%/ops_extents.c \
	%D%/main.c
ucfs_LDADD = $(ckpt_libs) $(FUSE_LIBS)
