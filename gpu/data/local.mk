# Tokens to train on, and the generators that draw them.
# Uses ckpt/.
gpu_libuctrain_a_SOURCES += \
	%D%/rng.h %D%/rng.c \
	%D%/tokens.h %D%/tokens_impl.h %D%/tokens.c %D%/tokens_samples.c \
	%D%/tokens_file.c %D%/tokens_index.c
