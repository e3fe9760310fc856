# The commands of ucckpt, and what they share.
# Uses the rooms above.  May print.
ucckpt_SOURCES += \
	%D%/progress.h %D%/cmd.h %D%/cmd.c %D%/progress.c \
	%D%/info.c \
	%D%/check.c \
	%D%/diff.c \
	%D%/convert.c \
	%D%/extents.c
