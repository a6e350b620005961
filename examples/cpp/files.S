/* The files of an artifact as read-only data of the program, each on a multiple of 64. */
  .macro file name, path
  .balign 64
  .global \name\()_begin, \name\()_end
\name\()_begin:
  .incbin "\path"
\name\()_end:
  .endm

  .section .rodata
  file manifest, "manifest.json"
  file weights, "weights.safetensors"
  file tokenizer, "tokenizer.bin"

  .section .note.GNU-stack, "", %progbits
