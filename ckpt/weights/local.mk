# The weights alone: the state dict, split into files as Hugging Face does.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/weights_split.h %D%/weights_split.c \
	%D%/adapter.h %D%/adapter.c \
	%D%/sidecars.h %D%/sidecars.c \
	%D%/adapter_dirs.h %D%/adapter_dirs.c
