# FUSE requests, each answered exactly once.
# Uses ckpt/ and the rooms above.
ucfs_SOURCES += \
	%D%/fuse_caps.h %D%/fuse_caps.c \
	%D%/passthrough.h %D%/passthrough.c \
	%D%/passthrough_files.h %D%/passthrough_files.c \
	%D%/ops.h %D%/ops_impl.h %D%/ops.c %D%/ops_file.c
