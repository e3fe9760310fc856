# The table of a checkpoint's parameters, which loaders fill in and views are made of, and
# how ZeRO cuts them.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/partition.h %D%/partition.c \
	%D%/checkpoint.h %D%/checkpoint.c %D%/frozen.h %D%/frozen.c
