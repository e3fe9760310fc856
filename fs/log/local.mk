# The server's log and statistics.
# Uses ckpt/.
ucfs_SOURCES += \
	%D%/repeats.h %D%/repeats.c \
	%D%/log.h %D%/log.c \
	%D%/notify.h %D%/notify.c \
	%D%/stats.h %D%/stats.c
