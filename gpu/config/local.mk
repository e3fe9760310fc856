# Command-line flags and DeepSpeed's configuration.
# Uses ckpt/ and the rooms above.
gpu_libuctrain_a_SOURCES += \
	%D%/config.h \
	%D%/config_impl.h \
	%D%/settings.c %D%/settings_table.c \
	%D%/config.c %D%/config_json.c %D%/settle.c
