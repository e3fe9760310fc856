# How values and tensors are written: pickles, read as data and written, of which nothing is
# executed; dtype, shape, strides, casts, arithmetic as torch does it; containers: zip, torch's
# older one, .pt files, safetensors; what DeepSpeed calls its files, the keys of what is in
# them, and the objects of its optimizers.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/value.h %D%/value.c %D%/pickle.h %D%/machine.h %D%/machine.c %D%/pickle_read.c \
	%D%/pickle_write.c %D%/tensor.h %D%/tensor.c %D%/cast.h %D%/cast.c \
	%D%/names.h %D%/names.c %D%/deepspeed.h %D%/deepspeed.c %D%/module_dict.h %D%/module_dict.c %D%/zip.h %D%/zip.c \
	%D%/legacy.h %D%/legacy.c %D%/ptfile.h %D%/ptfile.c %D%/state.h %D%/state.c \
	%D%/safetensors.h %D%/safetensors.c %D%/serialization_id.h %D%/serialization_id.c \
	%D%/ptwrite.h %D%/ptwrite.c
