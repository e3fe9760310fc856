# The table of a checkpoint's parameters, which loaders fill in and views are made of.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/checkpoint.h %D%/checkpoint.c
