# The weights alone: the state dict, split into files as Hugging Face does.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/weights_split.h %D%/weights_split.c \
	%D%/frozen.h %D%/frozen.c \
	%D%/weights.h %D%/weights.c \
	%D%/weights_build.h %D%/weights_build.c %D%/weights_layers.c %D%/weights_load.c \
	%D%/adapter.h %D%/adapter.c \
	%D%/sidecars.h %D%/sidecars.c \
	%D%/adapter_dirs.h %D%/adapter_dirs.c
