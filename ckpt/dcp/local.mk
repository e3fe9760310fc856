# The loader of PyTorch distributed checkpoints.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/metadata.h %D%/chunks.c \
	%D%/unpickle.h %D%/unpickle.c %D%/metadata.c \
	%D%/blobs.h %D%/blobs.c \
	%D%/extents.h %D%/extents.c \
	%D%/model.h %D%/optimizer.h %D%/optimizer.c \
	%D%/choose.c %D%/model.c \
	%D%/megatron.c \
	%D%/dcp.h %D%/rows.c %D%/object.c %D%/dcp.c
