# PyTorch distributed checkpoints: what is where in them, and their files as those of a ZeRO
# checkpoint of one data-parallel rank.
# Uses base, pickle, tensor, format, pack and roots.
ckpt_libuckpt_a_SOURCES += \
	%D%/metadata.h %D%/place.c \
	%D%/unpickle.h %D%/unpickle.c %D%/metadata.c \
	%D%/blobs.h %D%/blobs.c \
	%D%/model.h %D%/optimizer.h %D%/optimizer.c \
	%D%/choose.c %D%/model.c \
	%D%/megatron.c \
	%D%/zerofile.h %D%/zerofile.c %D%/zerofile_read.c \
	%D%/dcp.h %D%/dcp.c
