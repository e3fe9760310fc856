# How an open file is served: streamed, passed through, or assembled in a
# cache ahead of its readers.
# Uses ckpt/ and the rooms above.
ucfs_SOURCES += \
	%D%/passthrough.h %D%/passthrough.c \
	%D%/hugefs.h %D%/hugefs.c \
	%D%/pool.h %D%/pool.c \
	%D%/predictor.h %D%/predictor.c \
	%D%/follow.h %D%/follow.c \
	%D%/backing.h %D%/backing_impl.h %D%/backing.c \
	%D%/assembly.c \
	%D%/prefetch.c
