# A ZeRO checkpoint as another number of data-parallel ranks would have saved
# it: how it is cut, and its files.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/reshard.h %D%/reshard_impl.h \
	%D%/reshard_entries.c %D%/reshard_groups.c %D%/reshard.c \
	%D%/reshard_states.c %D%/reshard_optim.c %D%/reshard_model.c %D%/reshard_module.c \
	%D%/reshard_frozen.c \
	%D%/reshard_file.c
