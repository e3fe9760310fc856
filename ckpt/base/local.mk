# Errors, bytes, memory, text and the bytes of a file: what every room stands on; parallel
# loops, CRC-32, a directory that appears whole; and the meter, which programs draw on a
# terminal.
# Uses nothing of ours.  An archive of its own, for programs on top of the shared library.
noinst_LIBRARIES += %D%/libucbase.a
%C%_libucbase_a_SOURCES = \
	%D%/array.h %D%/array.c \
	%D%/arena.h %D%/text.h %D%/errmsg.h %D%/text.c %D%/errmsg.c \
	%D%/checked.h \
	%D%/bytes.h %D%/bytes.c \
	%D%/system.h %D%/system.c \
	%D%/cpu_clones.h \
	%D%/meter.h %D%/meter.c \
	%D%/arena.c \
	%D%/attrs.h %D%/attrs.c \
	%D%/context.h %D%/beneath.h %D%/beneath.c \
	%D%/source.h %D%/source.c \
	%D%/json.h %D%/json.c \
	%D%/parallel.h %D%/parallel.c \
	%D%/crc32.h %D%/crc32.c \
	%D%/output.h %D%/output.c
