# What the commands of ucckpt share, and info, convert and extents.
# Uses the rooms above.  May print.
ucckpt_SOURCES += \
	%D%/cmd.h %D%/cmd.c \
	%D%/progress.h %D%/progress.c \
	%D%/report.h %D%/report.c \
	%D%/info.c \
	%D%/convert.c \
	%D%/extents.c
