# PyTorch distributed checkpoints: what is where in them, and their files as those of a ZeRO
# checkpoint of one rank.
# Uses base, pickle, tensor, format, pack and roots.
ckpt_libuckpt_a_SOURCES += \
	%D%/metadata.h %D%/place.h %D%/place.c %D%/metadata.c \
	%D%/blobs.h %D%/blobs.c \
	%D%/megatron.h \
	%D%/model.h %D%/optimizer.h %D%/optimizer.c %D%/model.c \
	%D%/megatron.c \
	%D%/zerofile.h %D%/zerofile.c \
	%D%/dcp.h %D%/dcp.c
