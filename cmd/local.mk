# ucckpt: the commands of the library (uckpt.h) for a terminal.

bin_PROGRAMS += ucckpt
uckpt_programs += ucckpt
ucckpt_SOURCES = \
	%D%/cmd.h %D%/cmd.c %D%/progress.h %D%/progress.c \
	%D%/find.h %D%/find.c %D%/ls.c %D%/extract.c \
	%D%/reports.c %D%/convert.c %D%/pack.c %D%/extents.c \
	%D%/main.c
ucckpt_LDADD = $(uckpt_libs)
ucckpt_LDFLAGS = $(uckpt_ldflags)
