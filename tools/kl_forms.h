/* The forms a distribution is passed in, and with them the operator: in the tool a matter of data. */
#ifndef TOOL_KL_FORMS_H
#define TOOL_KL_FORMS_H

/* In the order of the options --pred and --target. */
enum { FORM_PROBS, FORM_LOG_PROBS, FORM_LOGITS, FORMS };

typedef struct kl_forms {
    int predictions, targets;
} kl_forms;

/* Targets that are logits go with predictions that are. */
static inline const char *kl_operator(int predictions, int targets)
{
    static const char *const names[FORMS][FORMS] = {
        {"kl_probs_probs", "kl_probs_log_probs", "kl_probs_probs"},
        {"kl_log_probs_probs", "kl_log_probs_log_probs", "kl_log_probs_probs"},
        {"divergence_logits_probs", "divergence_logits_log_probs", "divergence_logits_logits"}};
    return names[predictions][targets];
}

#endif
