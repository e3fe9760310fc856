# ZeRO: partition arithmetic, shards of each stage, the opened checkpoint,
# and the index of its model for the next mount.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/partition.h %D%/partition.c \
	%D%/shard.h %D%/shard.c %D%/shard_zero12.c %D%/shard_zero3.c \
	%D%/shard_nvme.c \
	%D%/index_stream.h %D%/index_stream.c \
	%D%/index.h %D%/index.c \
	%D%/index_profile.h %D%/index_profile.c \
	%D%/indexfile.h %D%/indexfile.c \
	%D%/checkpoint.h %D%/checkpoint.c \
	%D%/complete.h %D%/complete.c \
	%D%/param_extents.h %D%/param_extents.c
