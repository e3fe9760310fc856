# The files of a checkpoint by path, wherever they lie: in directories, in packs, or
# spread over several roots.
# Uses base, remote, format, pack and dcp.
ckpt_libuckpt_a_SOURCES += \
	%D%/roots.h %D%/roots.c \
	%D%/files.h %D%/files.c
