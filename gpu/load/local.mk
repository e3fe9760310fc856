# Resuming from any checkpoint: what this rank keeps.
# Uses ckpt/ and the rooms above.
gpu_libuctrain_a_SOURCES += \
	%D%/load.h %D%/load_mount.h %D%/load_impl.h %D%/load_arranged.c \
	%D%/load.c %D%/load_find.c %D%/load_tensors.c \
	%D%/load_metadata.c %D%/load_megatron.c %D%/load_table.c \
	%D%/load_mount.c %D%/load_universal.c
