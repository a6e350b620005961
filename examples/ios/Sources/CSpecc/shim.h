// The artifact's header, from the include path, and what its libmodel.a exports.
#include <specc.h>

struct specc_model;
const struct specc_model* specc_model_entry(void);
extern const char specc_model_build[];
