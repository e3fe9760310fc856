# The context of a user of the library, and files that it opens.
# Uses base, cache, remote, format, pack and io.
ckpt_libuckpt_a_SOURCES += \
	%D%/files.h %D%/files.c
