# Errors, bytes, memory, text and the bytes of a file: what every room
# stands on; and the meter, which programs draw on a terminal.
# Uses nothing of ours.  An archive of its own, for programs on top of the shared library.
noinst_LIBRARIES += %D%/libucbase.a
%C%_libucbase_a_SOURCES = \
	%D%/utf8.h %D%/utf8.c \
	%D%/errmsg.h %D%/errmsg.c \
	%D%/array.h %D%/array.c \
	%D%/checked.h \
	%D%/hashtab.h %D%/hashtab.c \
	%D%/bytes.h \
	%D%/bytebuf.h %D%/bytebuf.c \
	%D%/suggest.h %D%/suggest.c \
	%D%/size.h %D%/size.c \
	%D%/meter.h %D%/meter.c \
	%D%/arena.h %D%/arena.c \
	%D%/scratch.c \
	%D%/permissions.h %D%/permissions.c %D%/dirlist.h %D%/dirlist.c \
	%D%/context.h %D%/beneath.h %D%/beneath.c \
	%D%/source.h %D%/source.c \
	%D%/json.h %D%/json.c
