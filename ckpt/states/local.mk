# A parameter's states, alike for every kind of checkpoint, to compare them.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/state.h %D%/state.c %D%/statetree.h %D%/statetree_impl.h \
	%D%/statetree.c %D%/statetree_zero.c %D%/statetree_universal.c \
	%D%/statetree_hf.c
