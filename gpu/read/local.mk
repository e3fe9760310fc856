# From files to the memory of a device, several reads at a time.
# Uses ckpt/, backend and nvidia.
gpu_libuctrain_a_SOURCES += \
	%D%/pagecache.h %D%/pagecache.c \
	%D%/upload.h %D%/upload.c
