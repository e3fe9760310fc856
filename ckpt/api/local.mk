# What uckpt.h says of an open source: options, names, attributes, files.  What
# callers pass is checked here.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/api.h \
	%D%/settings.h %D%/settings.c \
	%D%/api_source.c %D%/api_dir.c %D%/api_file.c \
	%D%/api_map.c %D%/api_extents.c %D%/api_tensors.c
