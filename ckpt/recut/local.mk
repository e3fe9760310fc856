# A ZeRO checkpoint as another number of data-parallel ranks would have saved
# it: how it is cut, and its files.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/recut.h %D%/recut_impl.h %D%/recut_groups.c %D%/recut.c \
	%D%/zero_object.h %D%/zero_object.c %D%/zero_optim.c %D%/zero_model.c \
	%D%/zero_entries.c
