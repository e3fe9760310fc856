# The namespace as inodes: a run's own files, views of its tags, and .ucfs.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/paths.h %D%/paths.c \
	%D%/source_files.h %D%/source_files.c \
	%D%/slots.h %D%/slots_impl.h %D%/slots.c %D%/slots_saved.c \
	%D%/tree.h %D%/tree_impl.h %D%/rng_files.c %D%/warn_unservable.c \
	%D%/tree.c %D%/tree_open.c \
	%D%/tree_lookup.c %D%/tree_dir.c \
	%D%/tree_control.c
