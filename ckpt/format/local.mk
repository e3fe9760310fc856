# Containers: zip, torch's older one, .pt files, safetensors, read and laid out; what
# DeepSpeed calls its files, and the keys of what is in them.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/keys.h %D%/names.h %D%/names.c %D%/module_dict.h %D%/module_dict.c \
	%D%/zip.h %D%/zip.c \
	%D%/legacy.h %D%/legacy.c \
	%D%/ptfile.h %D%/ptfile.c %D%/state.h %D%/state.c \
	%D%/safetensors.h %D%/safetensors.c \
	%D%/serialization_id.h %D%/serialization_id.c \
	%D%/ptwrite.h %D%/ptwrite.c
