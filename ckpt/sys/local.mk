# memory, CRC-32, a directory that appears whole.
# Uses base.
ckpt_libuckpt_a_SOURCES += \
	%D%/clock.h \
	%D%/idle.h \
	%D%/parallel.h %D%/parallel.c \
	%D%/memory.h %D%/memory.c \
	%D%/dynlib.h %D%/dynlib.c \
	%D%/crc32.h %D%/crc32.c \
	%D%/cpu_clones.h \
	%D%/output.h %D%/output.c
