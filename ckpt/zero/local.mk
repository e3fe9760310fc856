# ZeRO: shards of each stage, the opened checkpoint; and what DeepSpeed saves without ZeRO.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/shard.h %D%/shard_impl.h \
	%D%/shard.c %D%/shard_partition.c %D%/shard_nvme.c \
	%D%/stage0.h %D%/stage0_build.h %D%/stage0_match.c %D%/stage0_optim.c \
	%D%/stage0.c %D%/stage0_experts.c %D%/stage0_object.c \
	%D%/rows.h \
	%D%/checkpoint.h %D%/zero_verify.h %D%/zero_verify.c %D%/zero_parts.c %D%/checkpoint.c \
	%D%/rows_layers.c %D%/rows.c
