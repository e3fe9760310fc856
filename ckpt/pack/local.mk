# A pack: the files of a directory, compressed, in one file that is read in place.
# Uses base, remote and format.
ckpt_libuckpt_a_SOURCES += \
	%D%/pack_hash.h \
	%D%/block.h %D%/block.c \
	%D%/pack_index.h %D%/pack_index.c \
	%D%/pack.h %D%/pack.c %D%/pack_extract.c \
	%D%/packed.h %D%/packed.c \
	%D%/pack_write.h %D%/pack_write.c
