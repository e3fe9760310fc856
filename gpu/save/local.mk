# Writing a checkpoint, whole or not at all.
# Uses ckpt/ and the rooms above.
gpu_libuctrain_a_SOURCES += \
	%D%/ptsave.h %D%/ptsave.c \
	%D%/saver.h \
	%D%/save_lock.h %D%/save_lock.c \
	%D%/save_impl.h %D%/state_order.c %D%/save_prune.c %D%/save_model.c %D%/save_universal.c \
	%D%/save_megatron.c %D%/save_rng.c \
	%D%/save_shard.c %D%/save_config.c %D%/save_dsconfig.c %D%/saver.c
