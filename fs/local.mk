# Serves a finished plan over FUSE.

bin_PROGRAMS += ucfs
ucfs_SOURCES = \
	%D%/log/log.h %D%/log/log.c \
	%D%/options.h %D%/options.c \
	%D%/tree/pathtab.h %D%/tree/pathtab.c \
	%D%/tree/views.h %D%/tree/views.c \
	%D%/log/stats.h %D%/log/stats.c \
	%D%/log/stats_log.h %D%/log/stats_log.c \
	%D%/tree/tree.h %D%/tree/tree_impl.h %D%/tree/tree.c \
	%D%/tree/tree_dir.c \
	%D%/tree/tree_control.c \
	%D%/tree/autosave.h %D%/tree/autosave.c \
	%D%/ops/fuse_caps.h %D%/ops/fuse_caps.c \
	%D%/backing/passthrough.h %D%/backing/passthrough.c \
	%D%/backing/pool.h %D%/backing/pool.c \
	%D%/backing/predictor.h %D%/backing/predictor.c \
	%D%/backing/backing.h %D%/backing/backing_impl.h %D%/backing/backing.c \
	%D%/backing/assembly.c %D%/backing/prefetch.c \
	%D%/ops/prefill.h %D%/ops/prefill.c \
	%D%/backing/timeslice.h %D%/backing/timeslice.c \
	%D%/ops/ops.h %D%/ops/ops_impl.h %D%/ops/ops.c %D%/ops/ops_file.c \
	%D%/ops/ops_extents.c \
	%D%/main.c
ucfs_LDADD = $(ckpt_libs) $(FUSE_LIBS)
