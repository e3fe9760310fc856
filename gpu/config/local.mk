# Command-line flags and DeepSpeed's configuration.
# Uses ckpt/ and the rooms above.
gpu_libuctrain_a_SOURCES += \
	%D%/config.h \
	%D%/flags.h \
	%D%/config_impl.h \
	%D%/flags.c \
	%D%/dskeys.h %D%/dskeys.c \
	%D%/config.c %D%/config_json.c
