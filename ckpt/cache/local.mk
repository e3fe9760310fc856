# Blocks of files in memory, read ahead where storage is far away.
# Uses base and sys.
ckpt_libuckpt_a_SOURCES += \
	%D%/latency.h %D%/latency.c \
	%D%/cache.h %D%/cache_impl.h %D%/cache_blocks.c %D%/cache.c
