# What the commands of ucckpt share, and info, convert and extents.
# Uses the rooms above.  May print.
ucckpt_SOURCES += \
	%D%/cmd.h %D%/cmd.c \
	%D%/progress.h %D%/progress.c \
	%D%/interrupt.h %D%/interrupt.c \
	%D%/report.h %D%/report.c \
	%D%/info.h %D%/info.c %D%/info_text.c %D%/info_json.c \
	%D%/convert.c \
	%D%/extents.c
