#pragma once

#include <cstddef>
#include <string>

void json_test();
void commit_test();
void drafters_test();
void controller_test();
void found_drafts_test();
void sampling_test();
void pool_test(const std::string& folder);
void files_test(const std::string& folder);
void session_test(const std::string& artifacts);
void pieces_test(const std::string& artifacts);
void drawn_test(const std::string& artifacts);
void costs_test(const std::string& artifacts);
void policy_test(const std::string& artifacts);
void arena_test(const std::string& artifacts);
void batch_test(const std::string& artifacts);
void rounds_test(const std::string& artifacts, size_t rounds);
void edges_test(const std::string& artifacts);
void replace_test(const std::string& artifact);
int load_and_report(const std::string& artifact);

// Calls of operator new in this program; the model library takes its memory from malloc and is not counted.
long allocations_so_far();
