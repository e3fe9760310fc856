# The namespace as inodes: a run's own files, views of its tags, and .ucfs.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/pathtab.h %D%/pathtab.c \
	%D%/planned_files.h %D%/planned_files.c \
	%D%/views.h %D%/views_impl.h %D%/views.c %D%/views_saved.c \
	%D%/tree.h %D%/tree_impl.h %D%/rng_files.c %D%/warn_unservable.c \
	%D%/tree.c %D%/tree_open.c \
	%D%/tree_lookup.c %D%/tree_dir.c \
	%D%/tree_control.c
